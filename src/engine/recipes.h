/* engine/recipes.h: settings that were measured better for some kind of model on some kind of device.
 *
 * A recipe fills in what the user left open; what the user says wins. A row stands in the table with its measurement,
 * also where that says that nothing is gained: then it changes nothing. *immutable*.
 */
#ifndef OB_ENGINE_RECIPES_H
#define OB_ENGINE_RECIPES_H

#include "fmt/fmt.h"

typedef struct ob_recipe {
    const char *id;       /* "rotated-moe-ub1024" */
    const char *device;   /* kind of device */
    bool moe, rotated;    /* of the model: has experts; is Hadamard-rotated. Both must fit */
    int32_t n_ubatch;     /* --ubatch-size; 0: the default is as good */
    const char *measured; /* what it gains over the default, and where that was measured */
} ob_recipe;

/* In order; NULL past the end. */
const ob_recipe *ob_recipe_at(int index);
/* The one to use for a model file on a kind of device; NULL: there is none that gains. */
const ob_recipe *ob_recipe_find(const ob_file *f, const char *device);
/* Does a recipe fit this file, whatever the device? */
bool ob_recipe_fits(const ob_recipe *r, const ob_file *f);

#endif
