#include "levada/base/urls.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

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

/// Returns whether a bucket follows the scheme, which has no port.
bool names_bucket(std::string_view scheme) {
  constexpr std::array<std::string_view, 6> schemes = {"s3", "s3a", "s3n", "gs", "gcs", "oss"};
  return std::ranges::any_of(schemes, [&](std::string_view each) { return scheme.ends_with(each); });
}

std::string_view word_at(std::string_view text, std::size_t at) {
  return text.substr(at, text.find_first_of(blanks, at) - at);
}

/// Returns the first '?' that "name=" follows within its word.
std::size_t find_query(std::string_view text) {
  for (auto at = text.find('?'); at != text.npos;) {
    const auto word = word_at(text, at);
    if (word.find('=') != word.npos) return at;
    at = text.find('?', at + word.size());
  }
  return text.npos;
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

/// Copies a line without the secrets in its URLs. A line may be large and come from a file, so the time is linear in
/// its size: results of a search that lie ahead are kept.
class Line {
 public:
  explicit Line(std::string_view line) : line_(line), last_at_(line.rfind('@')) {}

  std::string shown() {
    for (auto at = line_.find(mark); at != line_.npos; at = line_.find(mark, done_)) {
      const auto scheme = line_.substr(done_, at - done_);
      const bool web = is_web(scheme), bucket = names_bucket(scheme);
      copy_to(at + mark.size());
      if (const auto end = end_of_user(bucket); end != line_.npos) done_ = end;
      for (auto query = begin_of_query(web); query != line_.npos; query = next_query()) {
        copy_to(query);
        done_ += size_of_query(line_.substr(done_));
      }
    }
    copy_to(line_.size());
    return std::move(shown_);
  }

 private:
  void copy_to(std::size_t end) {
    shown_ += line_.substr(done_, end - done_);
    done_ = end;
  }

  /// Returns the URL that begins here, up to a character that has to be escaped in one.
  std::string_view url() {
    if (url_end_ <= done_) {
      const auto url = line_.substr(done_, line_.find_first_of(" \t\"'<>", done_) - done_);
      url_end_ = done_ + url.find_last_not_of(":,.;)]}") + 1;
    }
    return line_.substr(done_, std::max(url_end_, done_) - done_);
  }

  /// Returns the end of the user and password that begin here, or npos if there are none.
  std::size_t end_of_user(bool is_bucket) {
    const auto authority = url().substr(0, url().find_first_of("/?#"));
    if (const auto at = authority.rfind('@'); at != authority.npos) return done_ + at + 1;
    // A password may contain characters that should have been escaped. A port has digits only.
    const auto colon = authority.find(':');
    if (colon == authority.npos || authority.starts_with('[')) return line_.npos;
    const auto port = authority.substr(colon + 1);
    const bool is_port = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
    const bool has_password = (is_bucket || !is_port) && last_at_ != line_.npos && last_at_ >= done_;
    return has_password ? last_at_ + 1 : line_.npos;
  }

  /// Returns where the query of the URL that begins here begins. Characters that should have been escaped, such as a
  /// blank in the path, may precede it.
  std::size_t begin_of_query(bool is_web) {
    if (question_ < done_) question_ = line_.find_first_of("?#", done_);
    return is_web && question_ < done_ + url().size() ? question_ : next_query();
  }

  /// Returns the first '?' before the next URL that "name=" follows.
  std::size_t next_query() {
    if (next_mark_ < done_) next_mark_ = line_.find(mark, done_);
    const auto at = find_query(line_.substr(done_, next_mark_ - done_));
    return at == line_.npos ? at : done_ + at;
  }

  std::string_view line_;
  std::string shown_;
  std::size_t done_ = 0;  ///< all before has been copied or left out
  std::size_t last_at_;
  std::size_t url_end_ = 0;
  std::size_t question_ = 0;  ///< the first "?" or "#" from here on
  std::size_t next_mark_ = 0;
};

}  // namespace

std::string_view without_query(std::string_view path) {
  const auto at = path.find(mark);
  const auto scheme = path.substr(0, at == path.npos ? 0 : at);
  return (scheme.size() == 4 || scheme.size() == 5) && is_web(scheme) ? path.substr(0, path.find_first_of("?#")) : path;
}

std::string shown_url(std::string_view text) {
  std::string shown;
  while (true) {
    const auto end = std::min(text.find_first_of("\r\n"), text.size());
    shown += Line(text.substr(0, end)).shown();
    if (end == text.size()) return shown;
    shown += text[end];
    text.remove_prefix(end + 1);
  }
}

}  // namespace levada
