# SPDX-License-Identifier: Apache-2.0
"""Hard texts for tokenizers: curated cases, combinations of troublesome atoms, random Unicode. Seeded, and limited
to characters whose properties did not change since Unicode 3.2, so that the regex engines of two sides agree."""
import random
import unicodedata

OLD = unicodedata.ucd_3_2_0

CURATED = r"""
Hello, World! How are you?
I'm you're he's we've she'd they'll it'll don't DON'T I'M YOU'RE HE'S WE'VE SHE'D THEY'LL y'all'd've o'clock 'tis
'S 'ſ 'SS 'tttt ''s '' ' 's's'll'Ll'lL 'REd 'vEs x'Ve 9's _'s 's' s'
def f(x):\n\treturn x ** 2  # comment\n\n\nclass A:\n    pass\n
int main(int argc, char **argv) { printf("%d\\n", argc); return 0; }
<html><body class="a">&nbsp;</body></html>\r\n\r\n</s><s>[INST]</INST>
https://example.com/path?query=1&b=%20#frag user@example.org C:\\Windows\\System32 /usr/local/bin
0 1 12 123 1234 12345 123456 1234567890 3.14159 1,234,567.89 0x1F 1e-10 ½ ² ³ ¼ Ⅷ ⅻ ① ⑳ ٣٤٥ ०१२३ 一二三 १२३४५६ 𝟘𝟙𝟚
CamelCaseString snake_case_string SCREAMING_CASE kebab-case XMLHttpRequest iPhone eBay McDonald's ǅungla ǈ ʰʷ aʰB
ÀÉÎÕÜ àéîõü ßẞ ĳĲ ŉ ſt İı ﬀﬁﬂ Ǆ ǆ ª º µ Ω Å K
café cafe\u0301 nai\u0308ve Vie\u0323\u0302t Việt a\u0323\u0307 a\u0307\u0323 q\u0307\u0323 \u0301 \u0301a e\u0301\u0301 o\u0308\u0304
Cửa Việt Nước mắm C\u01b0\u0309a Vi\u0323\u0302t
нещо на Български ЁЖИК щука'с Україна їжак
Ελληνικά ΑΒΓ ςσ Ὀδυσσεύς Ἀθῆναι Α\u0345 ά ά
שלום עולם שָׁלוֹם מַה־נִּשְׁמָע׃
السلام عليكم مَرْحَبًا ٱللَّٰه ﷽ لا۱۲۳؟،
नमस्ते दुनिया क्षत्रिय ज्ञ कि़ \u0958 \u0915\u093c
বাংলা ভাষা তমিழ் தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල
ภาษาไทย กำลัง ลาวພາສາລາວ កាន់តែពិសេស ខ្មែរ မြန်မာ བོད་སྐད།
我想在apple工作1314151天～ 你好，世界！「引号」『书名号』《》【】、。；：？！…—— 漢字かな交じり文 カタカナ ｶﾅ ｡｢｣ ｱﾞ
こんにちは世界。すみません、12時です！ 東京都 々〆〇 ヶヵ ゛゜ か\u3099 は\u309a ー
안녕하세요 세계 한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8 \uac00\u11a8 ㄱㄴㄷ ㅏㅑ 가각힣
ქართული ႠႡ Հայերեն አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᠮᠣᠩᠭᠣᠯ ᠠ\u180eᠡ ᚠᚢᚦ ᚁ\u1680ᚂ 𐌰𐌱 𐐀𐐨 𝒜𝓑𝔠 𠀀𠀁 𓀀
😀 😁😂 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺️ ☺ ✅🚀 😶‍🌫️ ⌨️ 1️⃣ #️⃣ ©️ ™ 🦙🦙
a\u200bb\u200cc\u200dd\ufeffe\u2060f \ufeffBOM \u00adsoft hy\u00adphen \u200e\u200fx\u202ay\u202c \u2066z\u2069
a\u00a0b\u00a0\u00a0c \u00a0 d\u2028e\u2029f\u0085g\u000bh\u000ci \u2003\u2003j\u3000k\u3000\u3000 \u202f\u205f\u1680\u180e\u2000\u200a x
\u0000 \u0001\u0002\u001c\u001d\u001e\u001f \u007f\u0080\u009f \ufffd\ufffe\uffff \ue000 \U0010ffff \U000f0000 \ufdd0
~!@#$%^&*()_+`-={}|[]\\:";'<>?,./ ¡¿§¶†‡•…‰‹›€£¥₿ ™®© ±×÷≠≤≥∞√∑∫ ←→↑↓ ▁▂▃█ ▁▁ ─│┌ ✓✗ ♠♥
!!!!!! ?????? ...... ------ ====== ++++++ ###### ``` ''' \"\"\" /// \\\\\\ :::: ;;;; ,,,, ~~~~ ^^^^ &&&& |||| $$$$ @@@@ %%%%
!a #b "c (d /e @f [g ]h {i }j `k ~l $m +n <o =p >q ^r |s ，t ！u
a/\n/b !\n?\r\n.\n\n,\r  !/\n/ \n/\r/
  leading  double   triple    four     five      trailing      
\n\n\n \n \n\n  \n\n   \t\t\t \t \n\t\n \r\n \r \r\r\n\n end\n
 \n a\n b  \nc \n \td\t e\t\t f\r\ng \r h
x \u0301y \u0301\u0301 z\n\u0301 1\u0301 2 \u0308\u0308 ,\u0301 ，\u0301a
a\u0301b A\u0301B Ａｂｃ Ｄ１２３ ａＢＣｄ １２３４ ！＂＃ ￥ 　全角　空白　
ᾀᾳᾼ ᾽ ῀ ` ΄ ͺ ; · \u0374 \u212b \u2126 \u212a \u2329\u232a \u2f800\U0002f800 \ufb1d\u05d9\u05b4 \u0f71\u0f72\u0f74 \u0f73
""".replace("\\\\", "\x00BS").strip("\n")

ATOMS = (
    [" ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff"]
    + ["'s", "'S", "'t", "'T", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'m", "'", "''", "\u2019s", "'ſ", "'\u00e9"]
    + ["a", "A", "b", "Z", "hello", "World", "ABC", "aBc", "ǅ", "ʰ", "é", "e\u0301", "ß", "İ", "ı", "я", "Я", "Ω", "ως", "ა", "Ა"[:1]]
    + ["1", "12", "123", "1234", "12345", "²", "½", "Ⅷ", "٣", "१", "①", "１", "〇", "𝟘"]
    + ["中", "中文", "的", "\u9fa5", "\u4e00", "ひ", "カ", "ー", "々", "한", "\u1112\u1161\u11ab", "ㄱ", "ไ", "ก\u0e33", "\u0ac1", "क\u094d", "ا", "ש\u05b8", "ꀀ", "\ud7a3", "ࠀ"]
    + list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "，", "。", "！", "「", "»", "¿", "€", "±", "©", "→", "▁", "█", "´", "¨", "·"]
    + ["😀", "👍🏽", "👩‍👧", "🇩🇪", "❤️", "\u200d", "\ufe0f", "\u0301", "\u0308\u0323", "\u20dd", "\u0000", "\u001c", "\u007f", "\ufffd", "\ue000", "\U0010ffff"]
)


def curated():
    for line in CURATED.split("\n"):
        # The lines use Python's escapes; "\\" stands for one backslash.
        yield line.encode("latin-1", "backslashreplace").decode("unicode_escape").replace("\x00BS", "\\")


def stable_characters():
    out = []
    for cp in list(range(0x30000)) + [0xE0020, 0xE01EF, 0xF0000, 0x10FFFD]:
        c = chr(cp)
        if OLD.category(c) not in ("Cn", "Cs") and OLD.category(c) == unicodedata.category(c):
            out.append(c)
    return out


def combinations(rng, n):
    for _ in range(n):
        yield "".join(rng.choice(ATOMS) * rng.choice((1, 1, 1, 1, 1, 2, 3, 5)) for _ in range(rng.randint(1, 14)))


def random_text(rng, n):
    everything = stable_characters()
    small = [c for c in everything if ord(c) < 0x3000]
    marks = [c for c in everything if unicodedata.category(c)[0] == "M"]
    for i in range(n):
        pool = (everything, small, small + marks * 3)[i % 3]
        text = ""
        for _ in range(rng.randint(1, 40)):
            text += rng.choice(pool) if rng.random() < 0.8 else rng.choice(ATOMS)
        yield text


def long_texts():
    for unit, n in (("a", 3000), ("A", 3000), (" ", 3000), ("\n", 3000), ("\t", 2000), ("1", 3000), ("é", 1500), ("中", 2000),
                    ("😀", 1000), ("e\u0301", 1000), ("!", 3000), ("ab", 1500), ("Ab", 1500), (" a", 1500), ("a ", 1500), (" \n", 1000),
                    ("'s", 1000), ("\u0301", 500), ("\u0301\u0323", 300), ("-=", 1000), ("Donaudampfschifffahrtsgesellschaft", 60)):
        yield unit * n
        yield unit * (n // 3) + "x"
        yield "  " + unit * (n // 3) + " \n"


def corpus(n_combined=2500, n_random=1500, seed=7):
    rng = random.Random(seed)
    lines = list(curated())
    texts = lines + ["\n".join(lines)] + [w for line in lines for w in line.split(" ")]
    texts += list(combinations(rng, n_combined)) + list(random_text(rng, n_random)) + list(long_texts())
    return [t for t in dict.fromkeys(texts) if t]
