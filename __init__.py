"""attnbench: which attention should I use, and is this new one really better?"""
__version__ = "0.1.0"
