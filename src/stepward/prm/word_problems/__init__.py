"""Generated problems whose solutions a machine can check step by step."""
