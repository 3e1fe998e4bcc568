// Extracts the parts of URLs that are safe to show and that name a file.
#pragma once

#include <string>
#include <string_view>

namespace levada {

/// Returns `text`, a URL or a text that contains URLs, without the secrets in them: user, password and query, and for
/// http and https the fragment. A query ends at white space, unless words that contain "&name=" follow. After a blank
/// or a quotation mark in the URL's path, and outside http and https, only a '?' that "name=" follows begins a query,
/// so that other question marks, as those of patterns, are kept.
std::string shown_url(std::string_view text);

/// Returns the part of a path or URL that names the file: for a web address (http, https), everything before the query
/// or fragment. A query may be a signature.
std::string_view without_query(std::string_view path);

}  // namespace levada
