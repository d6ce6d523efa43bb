"""What is below the directories of a whole process tree, and reaches what runs it: watched, and held against the gate."""
