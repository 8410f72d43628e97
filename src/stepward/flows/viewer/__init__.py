"""``stepward view``: a local page to browse labelled solutions and evaluated items."""
