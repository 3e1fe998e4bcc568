#include "levada/base/urls.h"

namespace levada {
namespace {

/// Returns the end of the user and password at the front of `rest`, the text after "://"; 0 if there are none. `url` is
/// the part of `rest` that belongs to the URL.
std::size_t end_of_user(std::string_view url, std::string_view rest) {
  const auto authority = url.substr(0, url.find_first_of("/?#"));
  if (const auto at = authority.rfind('@'); at != url.npos) return at + 1;
  // A password may contain characters that should have been escaped. Ports have no letters.
  const auto colon = authority.find(':');
  const bool is_port = colon == url.npos || authority.find_first_not_of("0123456789", colon + 1) == url.npos;
  const auto at = is_port || authority.starts_with('[') ? url.npos : rest.rfind('@');
  return at == rest.npos ? 0 : at + 1;
}

std::size_t begin_of_query(std::string_view scheme, std::string_view url) {
  const bool is_web = scheme.ends_with("http") || scheme.ends_with("https");
  const auto query = url.find_first_of(is_web ? "?#" : "?");
  return query == url.npos || is_web || url.find('=', query) != url.npos ? query : url.npos;
}

}  // namespace

std::string_view without_query(std::string_view path) {
  const bool is_web = path.starts_with("http://") || path.starts_with("https://");
  return is_web ? path.substr(0, path.find_first_of("?#")) : path;
}

std::string shown_url(std::string_view text) {
  constexpr std::string_view mark = "://";
  std::string shown;
  for (auto at = text.find(mark); at != text.npos; at = text.find(mark)) {
    const auto scheme = text.substr(0, at);
    shown += text.substr(0, at + mark.size());
    text.remove_prefix(at + mark.size());
    const auto url_in = [](std::string_view rest) {
      const auto url = rest.substr(0, rest.find_first_of(" \t\n\r\"'<>"));
      return url.substr(0, url.find_last_not_of(":,.;)]}") + 1);
    };
    text.remove_prefix(end_of_user(url_in(text), text));
    const auto url = url_in(text);
    shown += url.substr(0, begin_of_query(scheme, url));
    text.remove_prefix(url.size());
  }
  return shown.append(text);
}

}  // namespace levada
