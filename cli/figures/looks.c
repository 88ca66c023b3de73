#include "cli/figures/figures.h"

/* Numbers of the palette: 0 blue, 1 orange, 2 green, 3 purple, 4 sky blue, 5 vermillion, 6 yellow,
 * 7 grey, 8 light grey. No two that often meet have one look. */
static const uint8_t phases[WEFT_N_PHASE] = {
  [WEFT_PHASE_FORWARD] = 4,   [WEFT_PHASE_BACKWARD] = 1, [WEFT_PHASE_INPUT_GRAD] = 6,
  [WEFT_PHASE_WEIGHT_GRAD] = 2, [WEFT_PHASE_RECOMPUTE] = 3, [WEFT_PHASE_REDUCE] = 7,
  [WEFT_PHASE_FINALIZE] = 7,  [WEFT_PHASE_OPTIMIZER] = 5,
};
static const uint8_t parts[WEFT_N_REPORT_PART] = {
  [WEFT_BUF_WEIGHTS] = 0,   [WEFT_BUF_GRADIENTS] = 2,     [WEFT_BUF_OPTIMIZER] = 6,
  [WEFT_BUF_ACTIVATIONS] = 4, [WEFT_BUF_GATHERED] = 3,    [WEFT_BUF_COMMUNICATION] = 1,
  [WEFT_BUF_WORKSPACE] = 7, [WEFT_REPORT_PADDING] = 8,    [WEFT_REPORT_RESERVED] = 5,
};

unsigned
weft_cli_phase_look (enum weft_phase phase)
{
  return phases[phase];
}

unsigned
weft_cli_part_look (int part)
{
  return parts[part];
}
