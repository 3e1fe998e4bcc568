#include "levada/feed/loss.h"

#include <fmt/format.h>

#include <string_view>

#include "levada/base/text.h"

namespace levada {
namespace {

/// Returns "raised ValueError at step 280 (bad sample)".
std::string describe(const feed_protocol::Left& left) {
  constexpr std::size_t max_text_bytes = 300;
  if (left.reason.empty()) return fmt::format("left its loop at {}", to_string(left.at));
  const auto colon = left.reason.find(": ");
  std::string text = fmt::format("raised {} at {}", printable(left.reason.substr(0, colon)), to_string(left.at));
  if (colon == std::string::npos) return text;
  const std::string_view message = std::string_view(left.reason).substr(colon + 2);
  return text + fmt::format(" ({})", printable(cut_text(message, max_text_bytes)));
}

bool is_certain(const feed_protocol::Follower& follower, Duration known_for) {
  const auto& left = follower.departure();
  if (!left) return false;
  const bool is_ahead = follower.at().round > left->at.round;
  const bool is_old = known_for >= loss_timeout;
  return left->reason.empty() ? is_ahead && is_old && !follower.finished() : is_ahead || is_old;
}

}  // namespace

std::optional<FeedLoss> find_loss(const feed_protocol::Follower& follower, const std::optional<Cause>& cause,
                                  Duration known_for, int own_rank) {
  const auto here = fmt::format("this rank ({}) is in {}", own_rank, to_string(follower.at()));
  const auto& left = follower.departure();
  // A rank that raised may have been killed before it could leave properly.
  const bool is_explained = left && !left->reason.empty() && (!cause || cause->rank == left->rank);
  if (cause && !is_explained) {
    return FeedLoss{cause->rank, cause->detail, fmt::format("{}; {}", printable(cause->text()), here)};
  }
  if (!cause && !is_certain(follower, known_for)) return std::nullopt;
  return FeedLoss{left->rank, left->reason, fmt::format("rank {} {}; {}", left->rank, describe(*left), here)};
}

}  // namespace levada
