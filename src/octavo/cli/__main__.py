from octavo.cli import main

main()
