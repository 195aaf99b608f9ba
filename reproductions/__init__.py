"""The experiments that Vitreous grew out of, rebuilt from its parts with their mistakes, each of which can be fixed."""
