// Whether written pages of a private view can be found.
#pragma once

#include <string>

namespace levada::cli {

/// Tries the ioctl PAGEMAP_SCAN (Linux 6.7) on a page of this process: "yes", or why not.
std::string try_pagemap_scan();

}  // namespace levada::cli
