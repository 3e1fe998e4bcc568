// The parts of URLs: what to show of them, and what they name.
#pragma once

#include <string>
#include <string_view>

namespace levada {

/// Returns `text` with the secrets removed from its URLs: user, password and query, and for http and https the
/// fragment. A URL ends at white space, a quotation mark or an angle bracket. A '?' that may belong to a pattern is
/// kept: outside http and https, a query must contain a '='.
std::string shown_url(std::string_view text);

/// Returns a path or URL up to the query or fragment of a web address (http, https): the part that names the file. A
/// query may be a signature.
std::string_view without_query(std::string_view path);

}  // namespace levada
