"""Read C++ without a compiler: comments, brackets, macros, and the #if branches for the CPU or the GPU."""

import ast
import operator
import re

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*?)[ \t]*$", re.M)
_FUNCTION_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(((?:[^()\n]|\\\n)*)\)((?:[^\n]*\\\n)*[^\n]*)", re.M)
_ALIAS = re.compile(r"(?<!\w)using\s+(\w+)\s*=\s*([\w\s:*<>,]+?)\s*;|(?<!\w)typedef\s+([\w\s:*<>,]+?)\s*\b(\w+)\s*;")


def blank_comments(source: str, strings: bool = False) -> str:
    """Replace comments (and strings, on request) in the text by blanks; lines keep their numbers."""
    pattern = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])'"

    def blank(match):
        keep = match.group()[0] in "\"'" and not strings
        return match.group() if keep else re.sub(r"[^\n]", " ", match.group())

    return re.sub(pattern, blank, source, flags=re.S)


def live(source: str, where: str) -> str:
    """Blank the lines that a side ("cpu", "gpu") never compiles: #if 0, and the other side's __CUDACC__ branches."""
    lines, stack = source.split("\n"), []  # (alive, known) for each open #if; known: whether it could be evaluated
    for number, line in enumerate(lines):
        match = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b\s*(.*)", line)
        if not match:
            lines[number] = line if all(alive for alive, _ in stack) else ""
            continue
        word, condition = match[1], match[2].strip()
        if word == "endif":
            stack[-1:] = []
        elif word in ("else", "elif"):
            alive, known = stack.pop() if stack else (True, False)
            stack.append((not alive, True) if known and word == "else" else (True, False))
        else:
            gpu = re.fullmatch(r"(!)?\s*(?:defined)?\s*\(?\s*__CUDA(?:CC|_ARCH)__\s*\)?(?:\s*>=?\s*\d+)?", condition)
            if gpu:
                wanted = (gpu[1] is None) == (word != "ifndef")
                stack.append(((where == "gpu") == wanted, True))
            else:
                stack.append((condition != "0", condition == "0"))
    return "\n".join(lines)


def hollow(text: str) -> str:
    """Replace the text between brackets by blanks, also between the < and > around a type's arguments."""
    partner, waiting, outside = {"(": ")", "[": "]", "{": "}", "<": ">"}, [], []
    for character in text:
        if waiting and character == waiting[-1]:
            waiting.pop()
        outside.append(character if not waiting or character == "\n" else " ")
        if character in "([{" or (character == "<" and (not waiting or waiting[-1] == ">")):
            waiting.append(partner[character])
    return "".join(outside)


def split(text: str) -> list[str]:
    """Split the text at the commas outside of all brackets."""
    ends = [match.start() for match in re.finditer(",", hollow(text))]
    return [text[i:j] for i, j in zip([0, *(e + 1 for e in ends)], [*ends, len(text)])]


def words_of(text: str) -> dict[str, str]:
    """Return the definitions of a text's macros and type aliases, {name: definition}."""
    words = {m[1]: m[2] for m in _DEFINE.finditer(text)}
    for match in _ALIAS.finditer(text):
        words[match[1] or match[4]] = (match[2] or match[3]).strip()
    return words


def expand(text: str, words: dict[str, str]) -> str:
    """Replace words in the text by their definitions repeatedly, at most eight times, until nothing changes."""
    for _ in range(8):
        replaced = re.sub(r"\b[A-Za-z_]\w*", lambda m: words.get(m[0], m[0]), text)
        if replaced == text:
            break
        text = replaced
    return text


def function_macros(text: str) -> dict[str, tuple[list[str], str]]:
    """Return the parameters and body of each macro that takes arguments."""
    return {
        m[1]: (re.findall(r"\w+|\.\.\.", m[2]), m[3].replace("\\\n", " ").strip())
        for m in _FUNCTION_MACRO.finditer(blank_comments(text))
    }


def code_only(source: str, strings: bool = False) -> str:
    """Replace comments, preprocessor lines and (unless `strings` is set) strings in the text by blanks."""
    bare = blank_comments(source, strings=not strings)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), bare, flags=re.M)


def open_braces(code: str, place: int) -> list[int]:
    """Return the positions of the braces that are open at a position in the text, outermost first."""
    waiting = []
    for match in re.finditer(r"[{}]", code[:place]):
        if match[0] == "{":
            waiting.append(match.start())
        elif waiting:
            waiting.pop()
    return waiting


def at_top(code: str, place: int) -> bool:
    """Return whether a position is outside of all braces, except the braces of namespaces and extern "C"."""
    space = re.compile(r"(?:\bnamespace\b[\s\w:]*|\bextern\s*)$")
    return all(space.search(code[:brace].rstrip()) for brace in open_braces(code, place))


ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def number(text: str, words: dict[str, str]) -> int | None:
    """Return the value of a constant integer expression with + - * /, or None for anything more complex."""
    try:
        return _value(ast.parse(expand(text, words).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node):
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("the expression must consist of integers and + - * /")


def bracket_fault(source: str) -> tuple[int, str, int] | None:
    """Return (line, message, column) for the first unmatched bracket, or None if all brackets match."""
    pairs, waiting = {")": "(", "]": "[", "}": "{"}, []
    for line, code in enumerate(blank_comments(source, strings=True).split("\n"), 1):
        for match in re.finditer(r"[][(){}]|;", code):
            bracket, here = match[0], (line, match.start() + 1)
            if bracket in "([{":
                waiting.append((bracket, here))
            elif bracket == ";":  # allowed inside (, in `for`, but not inside [
                if waiting and waiting[-1][0] == "[":
                    break
            elif waiting and waiting[-1][0] == pairs[bracket]:
                waiting.pop()
            elif waiting and waiting[-1][0] != "{":
                break  # the open one is at fault: `f(a[i);`, `if (i < n {`
            else:
                return here[0], f"this {bracket} closes nothing", here[1]
        else:
            continue
        break
    if not waiting:
        return None
    bracket, (line, column) = waiting[-1]
    return line, f"this {bracket} is never closed", column
