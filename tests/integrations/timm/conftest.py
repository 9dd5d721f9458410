import warnings

with warnings.catch_warnings():  # what other packages warn of when they are imported
    warnings.simplefilter("ignore")
    try:
        import timm  # noqa: F401
    except ImportError:  # timm itself, or torchvision, without which it does not import
        collect_ignore_glob = ["test_*.py"]
