/* figures.h - the figures of a page of docs are what the commands in its text draw. */
#pragma once

/* Runs the commands of a page that end with `--svg FIGURE`, where FIGURE is a path below `docs/`,
 * in the source folder, and fails the test unless each draws the figure that is there. A command
 * begins with `./weft` and goes over several lines that end with a backslash. `folder` is for the
 * new figures. Returns the number of figures. */
unsigned test_figures_check (const char *page, const char *folder);
