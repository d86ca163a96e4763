"""The course as static pages, which any web server or a double click opens."""

from labkit.site.modules import write_modules
from labkit.site.playground import write_playground
from labkit.site.running import read_notebook, run_notebook
from labkit.site.writing import SiteError, require_site_folder, write_site

__all__ = [
    "SiteError",
    "read_notebook",
    "require_site_folder",
    "run_notebook",
    "write_modules",
    "write_playground",
    "write_site",
]
