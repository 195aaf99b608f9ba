"""`python -m vitreous`: the form in which launchers of several processes take the command."""

from vitreous.cli import main

if __name__ == "__main__":
    main()
