#include "cli/cli.h"
#include <commit.h>

const char *
weft_cli_version (void)
{
  return WEFT_VERSION WEFT_COMMIT;
}
