#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/job/stack.h"

/* Columns of the list of stacks: the fields that differ most between stacks. */
static const char *const heads[] = { "kernel_gap",    "attention_forward_share", "collective_sms",
                                     "context_bytes", "communicator_bytes",      NULL };

static char *
cell (const union weft_value *values, unsigned column)
{
  int row = weft_table_find (&weft_stack_table, heads[column]);
  return weft_cli_field_human (&weft_stack_table.field[row], values[row]);
}

int
weft_cli_stacks (int argc, char **argv)
{
  static const struct weft_cli_sheets kind = {
    .sheet = &weft_stack_sheet,
    .command = "stacks",
    .example = "megatron-core",
    .heads = heads,
    .cell = cell,
  };
  return weft_cli_sheets (&kind, argc, argv);
}
