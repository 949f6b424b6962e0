"""The face and the driver: sweep file, plan, Ray Tune, command line. Imports every other room."""
