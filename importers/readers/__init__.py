"""One module for each format that ``steptape import`` reads."""
