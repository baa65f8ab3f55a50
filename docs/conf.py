"""The site: ``make docs``. Every code block of its pages runs as a test."""

project = "trueup"
author = "The trueup authors"
project_copyright = "The trueup authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["figures/*.py", "_build"]
html_theme = "furo"
html_title = "trueup"
html_show_sphinx = False
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
autodoc_typehints = "none"
autodoc_default_options = {"members": False}
add_module_names = False
