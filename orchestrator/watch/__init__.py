"""The live view: one picture of a sweep as it is now, and how a screen and a page show it."""
