import json
import os

json.dumps = os.write = lambda *a, **k: ""
