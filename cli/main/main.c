#include "cli/cli.h"

int
main (int argc, char **argv)
{
  return weft_cli_run (argc, argv);
}
