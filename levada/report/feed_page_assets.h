// The fixed parts of a feed's page.
#pragma once

#include <string_view>

namespace levada::report {

extern const std::string_view feed_page_style;   ///< CSS
extern const std::string_view feed_page_script;  ///< JavaScript

}  // namespace levada::report
