"""The process that trains, and its children: signals and locks, and who seals, pushes and samples."""
