"""Programs for courses: chapters as assignments graded by nbgrader, and individual assignments."""
