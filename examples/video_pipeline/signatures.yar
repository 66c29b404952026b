/*
  What no upload may contain. Bytes are written as numbers, so that a scanner that looks at this
  file does not find in it what it describes.
*/

rule eicar_test_file
{
    meta:
        description = "the test file of anti-virus programs (https://www.eicar.org)"
    strings:
        $head = { 58 35 4F 21 50 25 40 41 50 5B 34 5C 50 5A 58 35 34 28 50 5E 29 37 43 43 29 37 7D 24 }
        $words = { 45 49 43 41 52 2D 53 54 41 4E 44 41 52 44 2D 41 4E 54 49 56 49 52 55 53 }
    condition:
        $head and $words
}

rule program_in_disguise
{
    meta:
        description = "a program for Linux, Windows or macOS under the name of a video"
    condition:
        uint32be(0) == 0x7F454C46                  // ELF
        or (uint16be(0) == 0x4D5A and uint32(uint32(0x3C)) == 0x00004550)  // MZ … PE
        or uint32be(0) == 0xCFFAEDFE or uint32be(0) == 0xCAFEBABE  // Mach-O
}

rule script_in_disguise
{
    meta:
        description = "a script under the name of a video"
    strings:
        $shebang = { 23 21 2F }
        $html = "<script" nocase
    condition:
        $shebang at 0 or $html in (0..1024)
}

rule archive_behind_a_video
{
    meta:
        description = "a ZIP archive appended to a video, which opens as either"
    strings:
        $ftyp = "ftyp"
        $end = { 50 4B 05 06 }
    condition:
        $ftyp at 4 and $end in (filesize - 65557..filesize)
}
