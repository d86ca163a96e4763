"""Static figures and tables of what was recorded or published."""
