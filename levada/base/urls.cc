#include "levada/base/urls.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace levada {
namespace {

constexpr std::string_view mark = "://";
constexpr std::string_view blanks = " \t\n\r";

bool is_web(std::string_view scheme) {
  std::string lower(scheme.substr(scheme.size() - std::min<std::size_t>(scheme.size(), 5)));
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
  return lower.ends_with("http") || lower.ends_with("https");
}

std::string_view word_at(std::string_view text, std::size_t at) {
  return text.substr(at, text.find_first_of(blanks, at) - at);
}

/// Returns the URL at the front of a text, up to a character that has to be escaped in one.
std::string_view url_in(std::string_view text) {
  const auto url = text.substr(0, text.find_first_of(" \t\n\r\"'<>"));
  return url.substr(0, url.find_last_not_of(":,.;)]}") + 1);
}

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

/// Returns the first '?' in the line, before the next URL, that "name=" follows.
std::size_t find_query(std::string_view text) {
  const auto line = text.substr(0, std::min(text.find_first_of("\r\n"), text.find(mark)));
  auto at = line.find('?');
  while (at != line.npos && word_at(line, at).find('=') == line.npos) at = line.find('?', at + 1);
  return at;
}

/// Returns where the query of the URL at the front of the text begins. Characters that should have been escaped, such
/// as a blank in the path, may precede it.
std::size_t begin_of_query(bool is_web, std::string_view text) {
  const auto at = is_web ? url_in(text).find_first_of("?#") : text.npos;
  return at != text.npos ? at : find_query(text);
}

/// Returns the size of the query at the front of the text, without punctuation after it. Words that continue with
/// "&name=" belong to it.
std::size_t size_of_query(std::string_view text) {
  auto size = word_at(text, 0).size();
  for (auto next = text.find_first_not_of(" \t", size); next != text.npos; next = text.find_first_not_of(" \t", size)) {
    const auto word = word_at(text, next);
    const auto separator = word.find('&');
    if (separator == word.npos || word.find('=', separator) == word.npos) break;
    size = next + word.size();
  }
  return text.substr(0, size).find_last_not_of("'\":,.;)]}>") + 1;
}

}  // namespace

std::string_view without_query(std::string_view path) {
  const auto at = path.find(mark);
  const auto scheme = path.substr(0, at == path.npos ? 0 : at);
  return (scheme.size() == 4 || scheme.size() == 5) && is_web(scheme) ? path.substr(0, path.find_first_of("?#")) : path;
}

std::string shown_url(std::string_view text) {
  std::string shown;
  for (auto at = text.find(mark); at != text.npos; at = text.find(mark)) {
    const bool web = is_web(text.substr(0, at));
    shown += text.substr(0, at + mark.size());
    text.remove_prefix(at + mark.size());
    text.remove_prefix(end_of_user(url_in(text), text));
    for (auto query = begin_of_query(web, text); query != text.npos; query = find_query(text)) {
      shown += text.substr(0, query);
      text.remove_prefix(query);
      text.remove_prefix(size_of_query(text));
    }
  }
  return shown.append(text);
}

}  // namespace levada
