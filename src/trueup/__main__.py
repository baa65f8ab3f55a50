from trueup.cli import main

main()
