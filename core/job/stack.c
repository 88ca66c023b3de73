#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/base/sheet.h"
#include "core/base/words.h"
#include "core/schedule/schedule.h"
#include <string.h>

/* Every field but the name is optional: a stack file sets only values that differ from the defaults
 * in stack.def. */
#define MAY_LACK(id) .optional = WEFT_STACK_##id != WEFT_STACK_name

static const struct weft_field fields[] = {
#define FIELD_TEXT(id, def_, doc_) WEFT_ROW_TEXT (id, def_, doc_, MAY_LACK (id))
#define FIELD_INT(id, def_, lo_, hi_, doc_)                                                        \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_INT, def_, lo_, hi_, "", doc_, MAY_LACK (id))
#define FIELD_REAL(id, def_, lo_, hi_, unit_, doc_)                                                \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_REAL, def_, lo_, hi_, unit_, doc_, MAY_LACK (id))
#include "core/stack.def"
};

const struct weft_table weft_stack_table = { "stack field", fields, G_N_ELEMENTS (fields) };

static const char *const sections[] = { "stack", NULL };

const struct weft_sheet weft_stack_sheet = {
  .table = &weft_stack_table,
  .folder = "stacks",
  .sections = sections,
  .inherits = TRUE,
  .name = WEFT_STACK_name,
};

gboolean
weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error)
{
  return weft_sheet_load (&weft_stack_sheet, name_or_path, stack->at, error);
}

/* ---------------------------------------------------------------------- kernels */

/* number of elements that share one scale: OCP Microscaling Formats 1.0, section 5.2 */
enum { MX_BLOCK = 32 };

/* Head widths for which the attention kernels of a stack use tensor cores. The text "A..BxC" in a
 * stack means query and key heads of A to B elements, and value heads of up to C elements. */
struct tile {
  uint64_t least, most, value;
};

static gboolean
read_number (const char **at, uint64_t *number)
{
  char *end;

  if (!g_ascii_isdigit (**at))
    return FALSE;
  *number = g_ascii_strtoull (*at, &end, 10);
  *at = end;
  return *number > 0 && *number <= G_MAXUINT32;
}

static gboolean
read_word (const char **at, const char *word)
{
  if (!g_str_has_prefix (*at, word))
    return FALSE;
  *at += strlen (word);
  return TRUE;
}

static gboolean
read_tile (const char **at, struct tile *tile)
{
  return read_number (at, &tile->least) && read_word (at, "..") &&
         read_number (at, &tile->most) && read_word (at, "x") &&
         read_number (at, &tile->value) && tile->least <= tile->most &&
         (**at == '\0' || (read_word (at, " ") && **at));
}

static const char *
tiles_of (const union weft_stack *stack)
{
  return g_quark_to_string ((GQuark) stack->attention_tiles);
}

gboolean
weft_stack_reads_tiles (const union weft_stack *stack)
{
  const char *at = tiles_of (stack);
  struct tile tile;

  if (g_str_equal (at, "any"))
    return TRUE;
  do
    if (!read_tile (&at, &tile))
      return FALSE;
  while (*at);
  return TRUE;
}

gboolean
weft_stack_takes_heads (const union weft_stack *stack, uint64_t bytes, uint64_t width,
                        uint64_t value)
{
  const uint64_t multiple = (uint64_t) stack->attention_tile_multiple;
  const char *at = tiles_of (stack);
  struct tile tile;

  if ((stack->attention_tile_bytes && bytes != (uint64_t) stack->attention_tile_bytes) ||
      width % multiple || value % multiple)
    return FALSE;
  if (g_str_equal (at, "any"))
    return TRUE;
  while (*at && read_tile (&at, &tile))
    if (width >= tile.least && width <= tile.most && value <= tile.value)
      return TRUE;
  return FALSE;
}

gboolean
weft_stack_takes_codes (const union weft_stack *stack, int64_t capability,
                        const struct weft_stack_codes *codes)
{
  const uint64_t multiple = (uint64_t) stack->expert_fp8_multiple;
  int64_t only = stack->expert_fp8_capability;

  return (only == 0 || capability == 0 || capability == only) &&
         (stack->expert_fp8_mx || codes->block != MX_BLOCK) && codes->n % multiple == 0 &&
         codes->k % multiple == 0;
}

/* ------------------------------------------------------------- what the software has */

gboolean
weft_stack_lists (int64_t list, const char *word)
{
  const char *text = g_quark_to_string ((GQuark) list);
  size_t n = strlen (word);

  if (g_str_equal (text, "any"))
    return TRUE;
  for (const char *at = text; (at = strstr (at, word)); at += n)
    if ((at == text || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
      return TRUE;
  return FALSE;
}

static gboolean
reads_list (int64_t list, const char *const *known)
{
  const char *text = g_quark_to_string ((GQuark) list);
  g_auto (GStrv) words = g_strsplit (text, " ", -1);

  if (g_str_equal (text, "any"))
    return TRUE;
  for (unsigned i = 0; words[i]; i++)
    if (!g_strv_contains (known, words[i]))
      return FALSE;
  return words[0] != NULL;
}

gboolean
weft_stack_reads_lists (const union weft_stack *stack)
{
  return reads_list (stack->wrappers, weft_distributed_words) &&
         reads_list (stack->parallelism, weft_parallelism_words) &&
         reads_list (stack->schedules, weft_schedule_words) &&
         reads_list (stack->collective_protocols, weft_protocol_words) &&
         reads_list (stack->collective_algorithms, weft_algorithm_words);
}
