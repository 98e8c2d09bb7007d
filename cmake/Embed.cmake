# Writes the files of the report's page as arrays of a C file.  Run as
#   cmake -DOUT=FILE.c -DFOLDER=src/report/page -P cmake/Embed.cmake
set(text "/* Generated from src/report/page by cmake/Embed.cmake. */\n#include \"report/page.h\"\n")
foreach(pair script=page.js style=page.css)
  string(REGEX MATCH "(.*)=(.*)" pair ${pair})
  set(name ${CMAKE_MATCH_1})
  file(READ ${FOLDER}/${CMAKE_MATCH_2} bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "const char lki_page_${name}[] = {\n${bytes}0 };\n")
endforeach()
file(WRITE ${OUT} "${text}")
