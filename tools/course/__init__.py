"""Chapters as assignments: releases and grades by nbgrader."""
