# The C interface, one file for each folder of csrc/. These files mirror the headers; C functions are declared nowhere else.
# SPDX-License-Identifier: MIT
