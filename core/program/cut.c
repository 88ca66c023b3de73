#include "core/program/cut.h"

#define WORDS(name, LIST) const char *const name[] = { LIST (WEFT_WORD_TEXT) NULL }
WORDS (weft_cut_words, WEFT_CUT_LIST);

/* Rows of one part of a tensor (q, k or v): first row and number of rows, in the rank's share and
 * in the whole tensor. */
struct part {
  uint64_t begin, rows, whole_begin, whole_rows;
};

static struct part
part_of (const struct weft_param *param, uint64_t row)
{
  uint64_t first = param->rows - 2 * param->tail;
  uint64_t whole_first = param->whole_rows - 2 * param->tail * param->ways;
  uint64_t tails = row < first ? 0 : (row - first) / param->tail;

  if (row < first)
    return (struct part){ 0, first, 0, whole_first };
  return (struct part){ first + tails * param->tail, param->tail,
                        whole_first + tails * param->tail * param->ways,
                        param->tail * param->ways };
}

/* Returns the number of ranks among which one expert block (inner) is divided. For a tensor without
 * expert blocks: the number of ranks among which the tensor is divided (ways). */
static uint32_t
inner_of (const struct weft_param *param)
{
  return param->block ? param->inner : param->ways;
}

/* Returns the number of rows of the whole tensor that precede the expert rows of rank number
 * `place`. 0 if the tensor has no expert blocks. */
static uint64_t
rows_before (const struct weft_param *param, uint32_t place)
{
  uint64_t rows = param->rows * (param->cut == WEFT_CUT_ROWS ? inner_of (param) : 1);

  return place / inner_of (param) * rows;
}

static gboolean
run_of_rows (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
             struct weft_cut_run *run)
{
  uint64_t columns = param->columns;

  while (at < end) {
    struct part part = part_of (param, at / columns);
    uint64_t part_end = MIN (end, (part.begin + part.rows) * columns);
    uint64_t before = place * part.rows * columns + at - part.begin * columns;
    uint64_t whole = part.whole_rows * columns;
    if (before < whole) {
      *run = (struct weft_cut_run){ at, part.whole_begin * columns + before,
                                    MIN (part_end - at, whole - before) };
      return TRUE;
    }
    at = part_end;
  }
  return FALSE;
}

/* Finds the run inside one expert's block of rows. Unlike other tensors, blocks have no padding. */
static gboolean
run_of_block (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
              struct weft_cut_run *run)
{
  struct weft_param block = *param;
  uint64_t n = param->block * param->columns, b = at / n, inner = param->inner;

  block.rows = param->block;
  block.whole_rows = param->block * inner;
  block.ways = param->inner;
  if (at >= end || !run_of_rows (&block, place % inner, at - b * n, MIN (end - b * n, n), run))
    return FALSE;
  run->at += b * n;
  run->first += rows_before (param, place) * param->columns + b * n * inner;
  return TRUE;
}

gboolean
weft_cut_run (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
              struct weft_cut_run *run)
{
  uint64_t columns = param->columns, column = at % columns;

  if (param->cut == WEFT_CUT_ROWS)
    return (param->block ? run_of_block : run_of_rows) (param, place, at, end, run);
  if (at >= end)
    return FALSE;
  if (param->cut == WEFT_CUT_NONE)
    *run = (struct weft_cut_run){ at, at, end - at };
  else
    *run =
        (struct weft_cut_run){ at,
                               (rows_before (param, place) + at / columns) * param->whole_columns +
                                   place % inner_of (param) * columns + column,
                               MIN (end - at, columns - column) };
  return TRUE;
}

void
weft_cut_narrow (const struct weft_param *param, uint32_t place, const struct weft_cut_run *of,
                 uint64_t *at, uint64_t *end)
{
  uint64_t width = param->whole_columns;

  if (param->cut != WEFT_CUT_COLUMNS)
    return;
  uint64_t before = rows_before (param, place), first = of->first / width,
           last = (of->first + of->n + width - 1) / width;
  *at = MAX (*at, (first - MIN (first, before)) * param->columns);
  *end = MIN (*end, (last - MIN (last, before)) * param->columns);
}
