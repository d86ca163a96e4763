"""Number formats as data for scripts that compute with them (numbers.js)."""
