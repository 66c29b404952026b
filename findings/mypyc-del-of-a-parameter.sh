#!/usr/bin/env bash
# mypyc: `del` of a parameter compiles in a method, and not in an asynchronous one.
#
# Packages: mypy 2.4.1 with setuptools 80.9.0 (PyPI), and a C compiler
# Expected: a method that ends the use of a parameter with `del` compiles with `async` as without.
# Seen: parameters of coroutines are kept as attributes of an object, so the compiler refuses to
#   delete one, and speaks of an attribute and of `__deletable__` in a class that has neither.
#   mypy itself has nothing against the same file.
# Whom it bites: who marks unused arguments with `del`, as linters recommend, and compiles.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'mypy==2.4.1' 'setuptools==80.9.0'
cd "$folder"
export PATH="$folder/venv/bin:$PATH"
cat > plain.py <<'PYTHON'
class Handler:
    def handle(self, unused: int) -> str:
        del unused
        return "fine"
PYTHON
sed 's/    def /    async def /' plain.py > later.py
mypy --strict plain.py later.py
mypyc plain.py >/dev/null && echo "def: compiles"
if mypyc later.py > said.txt 2>&1; then
  echo "async def: compiles, too: the behaviour has changed"
  exit 1
fi
echo "async def: $(grep error said.txt)"
grep -q 'error: "unused" cannot be deleted' said.txt
