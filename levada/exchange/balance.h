// Division of sequences over ranks so that each gets about as many tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace levada {

/// Which items fall to which part: parts[p] are item numbers, ascending. Every item is in exactly one part.
using Partition = std::vector<std::vector<std::size_t>>;

enum class PartSizes : std::uint8_t {
  any,    ///< as many items as balance wants
  equal,  ///< of any two parts, one has at most one item more
};

/// Divides items over `parts` by their `tokens`: the differencing method of Karmarkar and Karp (1982) in the form for
/// several parts, with equal counts the balanced form of Michiels, Aarts, Korst, van Leeuwen and Spieksma (2003),
/// which differences groups of `parts` items. With `any` the better of that and LPT (Graham 1969) is taken, so that
/// the fullest part has at most 4/3 - 1/(3*parts) times the tokens of the best division possible; LPT alone where
/// items times parts go beyond a million, for then items are many and small. The same everywhere for the same input;
/// parts come in the order of their first items, empty ones last. Throws InvalidArgument: no parts; a negative count
/// of tokens; with `equal`, fewer items than parts.
Partition partition_by_tokens(std::span<const std::int64_t> tokens, std::size_t parts,
                              PartSizes sizes = PartSizes::any);

/// Runs of neighbours, none of them moved: the cut of a sequence of items into `parts` consecutive runs whose fullest
/// has the fewest tokens possible. Every part has an item. Throws InvalidArgument: no parts, a negative count, or fewer
/// items than parts.
Partition partition_in_order(std::span<const std::int64_t> tokens, std::size_t parts);

/// Tokens of each part.
std::vector<std::int64_t> tokens_by_part(const Partition& partition, std::span<const std::int64_t> tokens);

}  // namespace levada
