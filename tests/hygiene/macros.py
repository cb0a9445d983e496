# SPDX-License-Identifier: MIT
"""usage: macros.py compiler flags...

Preprocesses headwave/headwave.hpp and fails if one of our headers leaves a macro defined whose name does not start with
HEADWAVE_, or removes a macro that it has not defined itself. The macros of standard headers are theirs.
"""
import re
import subprocess
import sys

probe = "#include <headwave/headwave.hpp>\n"
command = sys.argv[1:] + ["-E", "-dD", "-x", "c++", "-"]
text = subprocess.run(command, input=probe, capture_output=True, text=True, check=True).stdout

ours = set()
faults = []
directives = 0
file = ""
for line in text.splitlines():
    if marker := re.match(r'# \d+ "(.*?)"', line):
        file = marker[1]
    elif "/headwave/" in file and (directive := re.match(r"#\s*(define|undef)\s+(\w+)", line)):
        directives += 1
        name = directive[2]
        if directive[1] == "define":
            ours.add(name)
        elif name in ours:
            ours.remove(name)
        else:
            faults.append(f"{file} removes {name}")

faults += [f"{name} stays defined" for name in sorted(ours) if not name.startswith("HEADWAVE_")]
print(f"{len(ours)} macros stay defined, {directives} directives seen")
if not directives:
    faults.append("no header of ours was seen")
sys.exit("\n".join(faults) or 0)
