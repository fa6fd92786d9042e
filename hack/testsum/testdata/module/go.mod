module example.org/m

go 1.26
