"""How Sphinx builds the site of documentation: `make docs`."""

import sys
from importlib.metadata import files
from pathlib import Path

import headwise

# The extensions of this site: docs/_extensions.
sys.path.insert(0, str(Path(__file__).parent))

project = "headwise"
copyright = "the headwise authors, Apache-2.0"
version = release = headwise.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "_extensions.docstrings",
]
exclude_patterns = ["_extensions"]
nitpicky = True

# Equations: $...$ and $$...$$, which code hosts draw too.
myst_enable_extensions = ["dollarmath"]
# MathJax in one file without fonts: it draws paths, and is copied to the site, which loads nothing
# from elsewhere. Of the package that has it the rest is not needed.
_mathjax = next(f for f in files("sphinx-mathjax-offline") or () if f.name == "tex-svg.js").locate()
mathjax_path = "tex-svg.js"

# Links to headings, as the code host makes them: page.md#a-heading.
myst_heading_anchors = 4
# The headings of CHANGELOG.md begin below the title of the page that includes it, for example.
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# What transformers says of the methods that models override is transformers' to say.
autodoc_inherit_docstrings = False
autodoc_default_options = {
    "members": True,
    "exclude-members": "config_class, rule, settings_class",
    "show-inheritance": True,
}
# Beyond it, each argument of a signature stands on a line of its own.
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Names that share a description stand in one line: kdim, vdim.
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Shape", ("Attributes", "params_style")]
# Types of signatures that the reference does not describe: those of other libraries, which would be
# looked up in the network, and those of headwise that users do not name.
nitpick_ignore_regex = [("py:.*", r"(?!headwise\.).*"), ("py:.*", r"headwise\.\w+\..*")]

# Code blocks that do not name a language are commands, equations and what is printed.
highlight_language = "text"
html_theme = "furo"
html_title = f"headwise {version}"
html_static_path = ["_static", str(_mathjax)]
html_css_files = ["site.css"]
html_copy_source = False
# There is no address at which every copy of the repository could be edited.
html_theme_options = {"top_of_page_buttons": []}
html_show_sphinx = False
# Prompts and what a command prints are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
