// What run_local() hands to a rank, and how the rank takes it up: variables and descriptors that survive exec.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/unique_fd.h"

namespace levada::launch {

inline constexpr const char* links_variable = "LEVADA_LINKS";    ///< descriptors of shm::make_links(), by comma
inline constexpr const char* report_variable = "LEVADA_REPORT";  ///< report_channel() that report_failure() writes to

/// "5,1234,77": a descriptor, the process that reads what is sent to it, and the socket that it has to be.
std::string report_channel(int descriptor);
/// What is sent there.
std::vector<char> encode_report(int rank, ErrorKind kind, std::string_view message);
/// From now on only this process reports, and none that it starts.
void inherit_report_channel();

/// "5,6,7".
std::string join_numbers(const std::vector<int>& numbers);
/// The links as shm::join() takes them: rank 0 has one for each other rank, behind an unused first entry; any other
/// rank has one. Throws InvalidArgument for descriptors that are not there, or that have been taken up already.
std::vector<UniqueFd> inherit_links(const char* text, int rank, int size);

}  // namespace levada::launch
