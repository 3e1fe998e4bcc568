// Extracts the parts of URLs that are safe to show and that name a file.
#pragma once

#include <string>
#include <string_view>

namespace levada {

/// Returns `text` without the secrets in its URLs: user, password and query, and for http and https the fragment. A URL
/// ends at white space, a quotation mark or an angle bracket. Outside http and https, a query must contain a '=', so
/// that a '?' that may belong to a pattern is kept.
std::string shown_url(std::string_view text);

/// Returns the part of a path or URL that names the file: for a web address (http, https), everything before the query
/// or fragment. A query may be a signature.
std::string_view without_query(std::string_view path);

}  // namespace levada
