"""Names that mean something in an answer: functions, Greek letters, relations, brackets of matrices."""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc asin acos atan sinh cosh tanh coth sech csch "
    "arcsinh arccosh arctanh ln log lg exp sqrt cbrt abs floor ceil sgn sign gcd lcm max min det Re Im arg".split()
)
SAME_FUNCTION = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "sgn": "sign", "lg": "log"}
INVERSE = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc",
    "sinh": "arcsinh", "cosh": "arccosh", "tanh": "arctanh",
}  # fmt: skip
SEVERAL_ARGUMENTS = frozenset({"gcd", "lcm", "max", "min"})
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split()
)
ACCENTS = frozenset(
    "overline bar vec hat tilde widehat widetilde overrightarrow dot ddot underline mathring overarc not".split()
)
RELATIONS = {"=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!="}
RELATION_COMMANDS = {
    "in": "in", "equiv": "equiv", "approx": "=", "ni": "ni", "notin": "notin", "subset": "subset",
    "subseteq": "subseteq", "to": "to", "parallel": "parallel", "perp": "perp", "sim": "sim", "cong": "cong",
}  # fmt: skip
SET_COMMANDS = ("cup", "cap", "setminus")
MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array".split())
# Commands whose content this grammar does not read: their meaning is more than their parts.
UNREADABLE = frozenset(
    "int iint iiint oint lim partial nabla underbrace overbrace stackrel overset underset substack cancel "
    "longdiv includegraphics input write def newcommand let csname catcode loop href url verb read openin".split()
)
DEFINITE = frozenset({"sum", "prod"})
NUMBER_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100,
}  # fmt: skip
