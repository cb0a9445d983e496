# SPDX-License-Identifier: MIT
"""usage: one_definition.py directory compiler flags...

Compiles one translation unit for plain x86-64 and one for x86-64-v3, as a program with a plug-in built by somebody else,
and fails unless
- they link in both orders and run, with a tensor and an exception crossing the boundary;
- every weak symbol of namespace headwave that both define has the same code, so that it does not matter which is kept;
- the plain object has no AVX instruction outside the functions of an instruction set's own namespace.
"""
import pathlib
import re
import subprocess
import sys

here = pathlib.Path(__file__).parent
directory = pathlib.Path(sys.argv[1])
compiler = sys.argv[2:]

# A name, a guard variable, a type's vtable, or a function's local static, declared in namespace headwave.
in_headwave = re.compile(r"_Z(GV|TV|TI|TS|TT)?Z?N[VKRO]*8headwave")
in_tier = re.compile(r"N[VKRO]*8headwave\w*?(4avx2|6avx512)")


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(name, march):
    target = directory / f"{name}.o"
    run(*compiler, f"-march={march}", "-c", here / f"one_definition_{name}.cpp", "-o", target)
    return target


def read_object(target):
    """Maps the defined symbols to (is weak, is a function, code or data, uses AVX), as bytes and relocations."""
    chunks = {}
    for line in run("objdump", "-D", "-z", "-r", "-w", target).splitlines():
        if header := re.match(r"Disassembly of section (.+):$", line):
            section = header[1]
        elif header := re.match(r"([0-9a-f]+) <.+>:$", line):
            chunk = chunks.setdefault((section, int(header[1], 16)), [[], False])
        elif instruction := re.match(r"\s+[0-9a-f]+:\s+((?:[0-9a-f]{2} )+)\s*(.*)", line):
            text, _, relocation = instruction[2].partition("\t")
            # The numbers of local labels (.LC3, .rodata+8) differ from object to object, whatever they label.
            chunk[0].append((instruction[1], re.sub(r"^[0-9a-f]+: |(?<=\s)\.[\w.]+.*", "", relocation)))
            chunk[1] |= section.startswith(".text") and bool(re.search(r"%[yz]mm|^v[a-z]+", text))

    symbols = {}
    for line in run("objdump", "-t", target).splitlines():
        if entry := re.match(r"([0-9a-f]+) (.{7}) (\S+)\s+[0-9a-f]+\s+(?:\.hidden )?(\S+)$", line):
            code, wide = chunks.get((entry[3], int(entry[1], 16)), ([], False))
            weak = entry[2][0] == "u" or entry[2][1] == "w"
            if entry[2][5] != "d":
                symbols[entry[4]] = (weak, entry[2][6] == "F", code, wide)
    return symbols


directory.mkdir(parents=True, exist_ok=True)
plain = build("plain", "x86-64")
wide = build("wide", "x86-64-v3")

faults = []
shared = []
plain_symbols, wide_symbols = read_object(plain), read_object(wide)
for symbol, (weak, is_function, code, uses_avx) in sorted(plain_symbols.items()):
    if uses_avx and not in_tier.search(symbol):
        faults.append(f"AVX in the plain object: {symbol}")
    if weak and in_headwave.match(symbol) and wide_symbols.get(symbol, (False,))[0]:
        shared.append(symbol)
        if code != wide_symbols[symbol][2] or (is_function and not code):
            faults.append(f"differs: {symbol}")

machine_is_wide = " avx2 " in pathlib.Path("/proc/cpuinfo").read_text()
for order in (plain, wide), (wide, plain):
    program = directory / "program"
    run(*compiler, *order, "-o", program)
    if machine_is_wide:
        run(program)

print(f"{len(shared)} shared symbols, programs {'run' if machine_is_wide else 'linked only: this machine has no AVX2'}")
sys.exit("\n".join(faults) or 0)
