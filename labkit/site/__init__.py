"""The course as static pages, which any web server or a double click opens."""

from labkit.site.live_files import LiveFiles
from labkit.site.modules import write_modules
from labkit.site.playground import write_playground
from labkit.site.pyodide import PyodideError, pyodide_of_folder, pyodide_of_npm
from labkit.site.running import read_notebook, run_notebook
from labkit.site.serving import address_of, server_of
from labkit.site.writing import MARKER, SiteError, require_site_folder, write_site

__all__ = [
    "MARKER",
    "LiveFiles",
    "PyodideError",
    "SiteError",
    "address_of",
    "pyodide_of_folder",
    "pyodide_of_npm",
    "read_notebook",
    "require_site_folder",
    "run_notebook",
    "server_of",
    "write_modules",
    "write_playground",
    "write_site",
]
