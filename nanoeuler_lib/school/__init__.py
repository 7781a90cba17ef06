"""For learners and instructors: bugs to find (`drills`), papers that mark themselves (`assign`), who is in a class."""
