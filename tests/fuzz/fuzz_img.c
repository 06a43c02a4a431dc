/* Promise of img: any bytes are a picture within the limits or a refusal with a reason, and what was accepted can be
 * resized. */
#include "fuzz.h"

#include "base/limits.h"
#include "img/img.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    ob_image img, out;
    ob_err err = {0};
    const ob_status s = ob_image_decode(data, len, &img, &err);
    if (s != OB_OK) {
        FUZZ_REQUIRE(*err.text && !img.rgb);
        return 0;
    }
    FUZZ_REQUIRE(img.w > 0 && img.h > 0 && img.w <= OB_MAX_IMAGE_SIDE && img.h <= OB_MAX_IMAGE_SIDE);
    if (ob_image_fit(&img, 1 + data[len / 2] % 40, 1 + data[len - 1] % 40, (ob_filter)(data[len / 3] % 3), &out, &err) == OB_OK)
        ob_image_deinit(&out);
    ob_image_deinit(&img);
    return 0;
}
