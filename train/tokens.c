#include "train/tokens.h"
