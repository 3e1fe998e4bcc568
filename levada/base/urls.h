// URLs as people may see them.
#pragma once

#include <string>
#include <string_view>

namespace levada {

/// Returns `text` without the secrets in its URLs: no user and password, no query. A URL ends at white space or a
/// quotation mark. A '?' that may be a pattern's stays: outside http and https a query has a '='.
std::string shown_url(std::string_view text);

}  // namespace levada
